-- What the platform billed for runs of ours: one row per usage record, with the price valid when the usage began.
--   :workspace_id  job run ids are unique inside a workspace only, and the table holds the whole account
--   :run_ids       a JSON list of texts, since a statement has no list parameter
--   :from_date     the day before the first of these runs, so that only partitions that matter are read
-- All record types are wanted: a RETRACTION takes back what an ORIGINAL said and a RESTATEMENT says it anew, so
-- only their sum is right. A record without a price is shown with its quantity; none is made up.
WITH ours AS (
    SELECT DISTINCT explode(from_json(:run_ids, 'array<string>')) AS run_id
)
SELECT u.record_id,
       u.usage_metadata.job_run_id AS run_id,
       u.record_type,
       u.sku_name,
       u.usage_unit,
       CAST(u.usage_quantity AS STRING) AS usage_quantity,
       CAST(coalesce(p.pricing.effective_list.default, p.pricing.default) AS STRING) AS unit_price,
       p.currency_code,
       u.usage_start_time,
       u.usage_end_time
  FROM system.billing.usage u
  JOIN ours ON u.usage_metadata.job_run_id = ours.run_id
  LEFT JOIN system.billing.list_prices p
    ON p.sku_name = u.sku_name
   AND p.cloud = u.cloud
   AND p.usage_unit = u.usage_unit
   AND p.currency_code = 'USD'
   AND p.price_start_time <= u.usage_start_time
   AND (p.price_end_time IS NULL OR u.usage_start_time < p.price_end_time)
 WHERE u.workspace_id = :workspace_id
   AND u.usage_date >= CAST(:from_date AS DATE)
   AND u.billing_origin_product = 'JOBS'
QUALIFY row_number() OVER (PARTITION BY u.record_id ORDER BY p.price_start_time DESC) = 1
