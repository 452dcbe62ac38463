-- Roles of catalog and ledger, in a database of their own that is called `tidemark`. Run it once, as a superuser:
--   createdb tidemark && psql -d tidemark -f deploy/policies/postgresql.sql
-- and set the passwords afterwards, so that no file and no history of a shell holds them: \password tidemark

-- Nobody else connects, and nobody writes beside the schema.
REVOKE ALL ON DATABASE tidemark FROM PUBLIC;
REVOKE ALL ON SCHEMA public FROM PUBLIC;

-- What loads: it makes and changes the tables of its own schema, `iceberg_*` and `tidemark_*`, and nothing else.
CREATE ROLE tidemark LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION;
GRANT CONNECT ON DATABASE tidemark TO tidemark;
CREATE SCHEMA tidemark AUTHORIZATION tidemark;
ALTER ROLE tidemark IN DATABASE tidemark SET search_path = tidemark;

-- What looks: `tidemark status`, `changes`, `history`, `report`, and pages that others draw.
CREATE ROLE tidemark_reader LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION;
GRANT CONNECT ON DATABASE tidemark TO tidemark_reader;
GRANT USAGE ON SCHEMA tidemark TO tidemark_reader;
ALTER DEFAULT PRIVILEGES FOR ROLE tidemark IN SCHEMA tidemark GRANT SELECT ON TABLES TO tidemark_reader;
ALTER ROLE tidemark_reader IN DATABASE tidemark SET search_path = tidemark;
ALTER ROLE tidemark_reader IN DATABASE tidemark SET default_transaction_read_only = on;

-- `tidemark drill` makes schemas that it drops again; grant this for as long as a drill takes:
--   GRANT CREATE ON DATABASE tidemark TO tidemark;
