-- Who else takes the requests of a service or an endpoint is looked for at each
-- change of one. The expressions are those of read.go.

-- +goose Up
CREATE INDEX objects_endpoint_claims ON objects
    ((body ->> 'service'), (regexp_replace(rtrim(body ->> 'path', '/'), '\{[^/]*\}', '{}', 'g'))) WHERE kind = 'endpoint';
CREATE INDEX objects_service_hosts ON objects USING gin ((body -> 'hosts')) WHERE kind = 'service';
CREATE INDEX objects_service_prefixes ON objects
    ((rtrim(coalesce(body ->> 'path_prefix', ''), '/'))) WHERE kind = 'service' AND coalesce(body -> 'hosts', '[]') = '[]';
