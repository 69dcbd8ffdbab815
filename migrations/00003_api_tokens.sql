-- +goose Up

-- Who may call the admin API. The secret itself is never stored.
CREATE TABLE api_tokens (
    -- The public name of the token.
    id text COLLATE "C" PRIMARY KEY,
    -- SHA-256 of the secret. Secrets are random and long, so that a fast hash is enough.
    hash bytea NOT NULL UNIQUE CHECK (octet_length(hash) = 32),
    role text NOT NULL CHECK (role IN ('viewer', 'editor', 'admin', 'region')),
    -- The only region that a token of role region speaks for; empty for other roles.
    region text NOT NULL CHECK ((role = 'region') = (region <> '')),
    author text NOT NULL,
    created_at timestamptz NOT NULL,
    -- NULL never ends.
    expires_at timestamptz,
    revoked_at timestamptz
);

-- +goose Down
DROP TABLE api_tokens;
