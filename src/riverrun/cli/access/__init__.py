"""`riverrun users`, `tokens`, `acls` and `quotas`: logins, rights and limits of clients."""
