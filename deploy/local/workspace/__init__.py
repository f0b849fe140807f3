"""The workspace double: one process that speaks the Databricks REST protocol on this machine.

The unchanged ``databricks-sdk`` and ``openai`` clients talk to it. Each room doubles one vendor API:
``oauth``, ``credentials`` (Lakebase logins), ``jobs`` (with ``runs``, which execute the real agent code in
warm processes), ``files`` (Volumes), ``serving`` (model endpoints), ``sql`` (statements over the billing
tables). ``faults`` is the double's own admin API: it makes any of them slow, silent, full or wrong.

Reads and writes: its data directory, and the login password of a role in Postgres.
When it is down: no run starts or ends, no file is read or written, and logins last until their token ends.
"""
