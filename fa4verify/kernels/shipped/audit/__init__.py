"""What FA4's PTX says about its numerics: facts by data flow, rules, and a contract (docs/audit.md)."""
