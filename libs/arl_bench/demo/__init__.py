"""Real rollouts on a real system: a stand-in for the policy model, environments, tests and a verdict."""
