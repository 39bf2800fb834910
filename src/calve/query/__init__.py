"""DuckDB over the lake's tables. The home of DuckDB: nothing else imports it."""
