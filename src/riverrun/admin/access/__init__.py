"""Users, delegation tokens, ACLs and quotas."""
