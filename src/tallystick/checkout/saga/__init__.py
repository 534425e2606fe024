"""The provider's word about money, and what it means for orders."""
