"""``riverrun topics``: list, create, describe, alter and delete topics."""
