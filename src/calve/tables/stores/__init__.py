"""One kind of store per module: how PyIceberg reaches its files."""
