-- Numbers of a stream that came before counting began are not missing, and count when the
-- topic is read from before. They are a hole that nobody notices.

-- +goose Up

ALTER TABLE gaps ALTER COLUMN noticed_at DROP NOT NULL;
