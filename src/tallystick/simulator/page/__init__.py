"""The page a person sees: the books, the faults, and forms to trigger them."""
