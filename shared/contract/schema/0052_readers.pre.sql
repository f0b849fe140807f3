-- BI for customers who must not see each other: a login that is a member of lockkeeper_customer_reader sees the
-- customers that rows here name for it, and nobody else's; without rows it sees nothing.

CREATE TABLE lockkeeper.reader_customers (
    reader   name NOT NULL,
    customer text NOT NULL,
    PRIMARY KEY (reader, customer)
);

-- Whether the login that asks may see this customer.
CREATE FUNCTION lockkeeper.may_read(of_customer text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER PARALLEL SAFE SET search_path = pg_catalog
AS $$
    SELECT EXISTS (SELECT FROM lockkeeper.reader_customers r
                    WHERE r.reader = session_user AND r.customer = of_customer)
$$;

-- A barrier, so that no function of the reader's own sees a row before this policy has let it pass.
CREATE VIEW lockkeeper.customer_costs WITH (security_barrier) AS
SELECT c.* FROM lockkeeper.task_costs c WHERE lockkeeper.may_read(c.customer);
