"""One kind of catalog per module: PyIceberg's, with what it lacks for safe use by many at once."""
