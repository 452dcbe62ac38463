"""Whether this deployment can be trusted to recover: a checklist, each point tested here with evidence."""
