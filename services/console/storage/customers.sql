-- Customers: their budgets over all agents.

-- name: list_customers
-- All customers that have, or had, a budget, or one, with what it has left.
SELECT c.*, b.spent_today, b.spent_this_month, b.reserved_this_month, b.cost_left, b.renewed_at
  FROM lockkeeper.customers c
  LEFT JOIN lockkeeper.budget_state b ON b.scope = 'customer' AND b.name = c.name
 WHERE $1::text IS NULL OR c.name = $1
 ORDER BY c.name

-- name: lock_customer
-- Hold a customer's row, so that its next version follows from the one that was read.
-- locks: customers
SELECT * FROM lockkeeper.customers WHERE name = $1 FOR NO KEY UPDATE

-- name: write_customer
-- Write a customer's next version; no row when somebody else just made the first one.
-- owner: console
-- fence: version, 0 before the first
-- locks: customers; then the guard of limits, which lets claims in flight end first
INSERT INTO lockkeeper.customers AS c (name, daily_budget, monthly_budget, updated_by)
VALUES ($1, $2, $3, $4)
    ON CONFLICT (name) DO UPDATE
   SET daily_budget = excluded.daily_budget, monthly_budget = excluded.monthly_budget, version = c.version + 1,
       updated_at = lockkeeper.clock(), updated_by = excluded.updated_by
 WHERE c.version = $5
RETURNING version
