-- Subscribers: endpoints within a service. The URL names a handler instead of a receiver; only workers that have that handler
-- claim for it.

ALTER TABLE endpoints
    DROP CONSTRAINT endpoints_url_check,
    ADD CONSTRAINT endpoints_url_check
        CHECK ((url ~ '^https?://' OR (url ~ '^subscriber:[A-Za-z0-9][A-Za-z0-9._-]{0,99}$' AND format = 'native')) AND octet_length(url) <= 2048);
COMMENT ON COLUMN endpoints.url IS 'Where webhooks are POSTed: absolute, http or https. Or subscriber:NAME, a handler within the service that embeds the worker.';
