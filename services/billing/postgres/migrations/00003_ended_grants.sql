-- Of what ended with nothing left, too, nothing is spent or given back any more.

-- +goose Up

ALTER TABLE grants ADD COLUMN ended boolean NOT NULL DEFAULT false;
UPDATE grants SET ended = true WHERE expired > 0;
