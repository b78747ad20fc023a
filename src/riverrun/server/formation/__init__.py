"""How a blank node joins the cluster of its seeds, or forms one with them."""
