"""After a restore: the providers are asked before anything is sent again."""
