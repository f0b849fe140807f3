-- What each agent and each customer has spent, by day: what a budget is compared with inside a claim.
-- Kept by the statement that adds up an attempt (roll_up_attempts), so it is exact at every commit and as cheap
-- to read as its days: at most 31 rows for a month of one agent. A day is the UTC day of the attempt's claim,
-- the moment at which its budget was asked. US dollars; corrections change the day that they correct.
CREATE TABLE lockkeeper.spending (
    scope        text NOT NULL CHECK (scope IN ('agent', 'customer')),
    name         text NOT NULL,
    day          date NOT NULL,
    llm_cost     numeric NOT NULL DEFAULT 0,
    compute_cost numeric NOT NULL DEFAULT 0,
    PRIMARY KEY (scope, name, day)
) WITH (fillfactor = 50);
