"""The journal on disk: one SQLite file for each run, one writer, any number of readers in other processes.

writing.py     SqliteJournal: append, group commit, durable
reading.py     JournalReader: records, outcomes and calls for a second process, while the run writes
tables.py      the schema, with the views that SQL users see, and what opening a file must find in it
place.py       where a journal may live, and the lock of its one writer
faults.py      what the disk said, as an error with a remedy
mailbox.py     commands from a second process to the run
"""

from centuria.journal.mailbox import post_command, take_commands
from centuria.journal.place import network_file_system
from centuria.journal.reading import CallRow, JournalReader
from centuria.journal.tables import Meta
from centuria.journal.writing import SqliteJournal

__all__ = [
    "CallRow",
    "JournalReader",
    "Meta",
    "SqliteJournal",
    "network_file_system",
    "post_command",
    "take_commands",
]
