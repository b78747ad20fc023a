"""How a blank node joins the cluster of its seeds, or founds one with them."""
