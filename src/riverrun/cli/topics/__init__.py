"""``riverrun topics``: list, create, describe, alter, trim and delete topics."""
