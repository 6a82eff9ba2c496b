"""Real rollouts on a real system: a substitute for the policy model, environments, tests and a verdict."""
