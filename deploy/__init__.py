"""How Lockkeeper is put on machines: the local stack, images, charts and bundles."""
