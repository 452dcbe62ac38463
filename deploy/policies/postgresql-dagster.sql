-- The role of Dagster's runs and events, in a database of its own that is called `dagster`. Run it once, as a superuser:
--   createdb dagster && psql -d dagster -f deploy/policies/postgresql-dagster.sql
-- and set the password afterwards: \password dagster

REVOKE ALL ON DATABASE dagster FROM PUBLIC;
REVOKE ALL ON SCHEMA public FROM PUBLIC;

CREATE ROLE dagster LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION;
GRANT CONNECT ON DATABASE dagster TO dagster;
CREATE SCHEMA dagster AUTHORIZATION dagster;
ALTER ROLE dagster IN DATABASE dagster SET search_path = dagster;
