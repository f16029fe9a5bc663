"""Where a gateway keeps keys, money, attempts and documents: a SQLite file, or PostgreSQL for several gateways.

rows.py   columns in and out, within bounds    files.py   a SQLite file and its faults
sqlite.py and postgres.py   the `Store` port
"""
