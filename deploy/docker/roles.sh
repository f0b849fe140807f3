#!/bin/sh
# Run once by the Postgres image on an empty volume: the owner, and a login for each service.
# What each may do comes later, with `lockkeeper migrate`.
set -eu

psql --set ON_ERROR_STOP=1 --set secret="$POSTGRES_PASSWORD" --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" <<'SQL'
CREATE ROLE lockkeeper LOGIN CREATEROLE PASSWORD :'secret';
ALTER DATABASE lockkeeper OWNER TO lockkeeper;
SET ROLE lockkeeper;
SELECT format('CREATE ROLE lockkeeper_%s LOGIN PASSWORD %L', service, :'secret')
  FROM unnest(ARRAY['dispatcher', 'sweeper', 'callback_receiver', 'cost_attributor', 'notifier', 'console',
                    'document_agent', 'underwriting_worker', 'underwriting_api']) AS service
\gexec
SQL
