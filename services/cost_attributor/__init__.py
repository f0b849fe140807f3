"""Cost attributor: says what each attempt used and what that cost, line by line, and never calls unknown zero.

Reads    task_attempts, model_prices, cost_requests, repricings, budget_state
Writes   cost_entries (the ledger), the cost columns of task_attempts, spending by day, run_bills, budget_alerts,
         the state of cost_requests and repricings
Hears    attempt_settled, cost_requested
Sends    cost_changed
Calls    the MLflow tracking server (search of traces); a SQL warehouse, only when a person asks
If down  costs stay pending, nothing is lost: whatever ended meanwhile is attributed when it is back.
         Replicas split the work by claim, and reading a source twice changes nothing.
"""
