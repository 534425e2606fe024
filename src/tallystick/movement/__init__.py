"""The one way out to a provider: intent, attempt, permit, look-up."""
