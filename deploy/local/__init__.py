"""The local stack: everything that Lockkeeper needs, started by one command on one machine.

`python -m deploy.local up` (what `./dev up` runs) starts Postgres, the workspace double, the
services, one front door for browsers, an MLflow server and a Temporal server as child processes.
Nothing here is part of a service and no service knows that it runs here: only addresses differ.

* `parts` says which processes there are, in which order, with which environment;
* `supervisor` starts, watches and stops them, `guard` outlives it, `folder` holds its state;
* `workspace` is the double of a Databricks workspace; `documents` makes the sample PDFs;
* `demo` is the story of the main job.
"""
