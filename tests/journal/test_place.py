"""Where a journal may live: a network file system is found by the mounts, wherever the folder lies below one."""

from __future__ import annotations

from pathlib import Path

import pytest

from centuria.journal import network_file_system

MOUNTS = r"""
/dev/vda1 / ext4 rw,relatime 0 0
proc /proc proc rw 0 0
server:/export /mnt/nfs nfs4 rw,vers=4.2 0 0
tmpfs /mnt/nfs/local tmpfs rw 0 0
//nas/share /mnt/with\040blank cifs rw 0 0
me@host:/ /home/me/remote fuse.sshfs rw 0 0
/dev/fuse /home/me/portal fuse.portal rw 0 0
C:\134 /mnt/c 9p rw,noatime,aname=drvfs;path=C:\;uid=1000,trans=fd 0 0
hostshare /mnt/vm 9p rw,trans=virtio,version=9p2000.L 0 0
far /mnt/far 9p rw,trans=tcp,port=564 0 0
overlay /data overlay rw 0 0
server:/two /data nfs rw 0 0
server:/three /srv nfs rw 0 0
/dev/vdb /srv ext4 rw 0 0
malformed
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", None),
        ("/home/me/runs", None),
        ("/mnt/nfs", "nfs4"),
        ("/mnt/nfs/a/b", "nfs4"),
        ("/mnt/nfsx", None),
        ("/mnt/nfs/local/run", None),
        ("/mnt/with blank/run", "cifs"),
        ("/home/me/remote/run", "fuse.sshfs"),
        ("/home/me/portal/run", None),
        ("/mnt/c/Users", "9p"),
        ("/mnt/vm/run", None),
        ("/mnt/far/run", "9p"),
        ("/data/run", "nfs"),
        ("/srv/run", None),
    ],
)
def test_a_network_file_system_is_found_and_a_local_one_let_through(folder: str, kind: str | None) -> None:
    assert network_file_system(Path(folder), MOUNTS) == kind


def test_where_nothing_is_known_of_the_mounts_nothing_is_refused() -> None:
    assert network_file_system(Path("/anywhere"), "") is None
