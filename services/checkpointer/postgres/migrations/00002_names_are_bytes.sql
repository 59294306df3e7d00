-- Ids of users and of refunds are the callers', and may hold what is no text here: a
-- byte 0. One of them must not keep the others out of the books.

-- +goose Up
ALTER TABLE counters ALTER COLUMN key TYPE bytea USING convert_to(key, 'UTF8');
ALTER TABLE corrections
    ALTER COLUMN tenant TYPE bytea USING convert_to(tenant, 'UTF8'),
    ALTER COLUMN refund TYPE bytea USING convert_to(refund, 'UTF8');
