-- Since when a rule has its limit and window: what it said before is not kept, and a refusal
-- from before has no limit to show. Of rules that are known already it is told as always.

-- +goose Up

ALTER TABLE rules ADD COLUMN limited_at timestamptz NOT NULL DEFAULT '-infinity';
