"""Dispatcher: leases waiting tasks within their agents' limits, and starts one job run for each attempt.

Reads    agents, tasks, replicas
Writes   tasks and task_attempts: claim, release, refuse, the run's id; an agent's cool-down
Hears    task_ready, config_changed, cancel_requested
Sends    task_changed, task_ready
Calls    the Jobs API: run now (with the attempt's id as idempotency token), cancel, get
If down  tasks wait; runs that were started go on, call back and are settled. Another replica takes
         over what this one had leased without knowing its run, and asks with the same token.
"""
