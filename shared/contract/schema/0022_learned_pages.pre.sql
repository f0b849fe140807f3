-- What a page of this agent's documents really takes, for estimates at enqueue; written by the dispatcher that learns.
ALTER TABLE lockkeeper.agents ADD COLUMN learned_tokens_per_page bigint CHECK (learned_tokens_per_page >= 1);
