"""How committed metadata becomes images that everybody sees."""
