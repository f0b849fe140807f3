-- That a budget was spent to a stated share, said once for each period.
CREATE TABLE lockkeeper.budget_alerts (
    scope    text NOT NULL,
    name     text NOT NULL,
    period   text NOT NULL CHECK (period IN ('day', 'month')),
    -- The first UTC day of the period.
    begins   date NOT NULL,
    share    numeric NOT NULL,
    budget   numeric NOT NULL,
    spent    numeric NOT NULL,
    reserved numeric NOT NULL,
    at       timestamptz NOT NULL DEFAULT lockkeeper.clock(),
    PRIMARY KEY (scope, name, period, begins, share)
);
CREATE INDEX budget_alerts_by_time ON lockkeeper.budget_alerts (at DESC);
