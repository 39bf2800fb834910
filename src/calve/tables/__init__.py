"""Catalogs, stores and tables. The home of PyIceberg: nothing else imports it."""
