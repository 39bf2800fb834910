"""The Spark session, its Java and its jars. The home of PySpark: nothing else makes a session."""
