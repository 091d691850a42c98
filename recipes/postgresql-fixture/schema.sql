-- A bank. Whatever happens, no money is made or lost, and the ledger explains each balance.
CREATE TABLE accounts (
    id int PRIMARY KEY,
    balance bigint NOT NULL
);
CREATE TABLE transfers (
    id bigserial PRIMARY KEY,
    source int NOT NULL,
    target int NOT NULL,
    amount bigint NOT NULL
);
INSERT INTO accounts SELECT n, 1000 FROM generate_series(1, 5000) AS n;
CREATE INDEX ON transfers (source);
CREATE INDEX ON transfers (target);

-- Moves money for ever, one transaction after the other.
CREATE PROCEDURE trade() LANGUAGE plpgsql AS $$
DECLARE
    seller int;
    buyer int;
    price bigint;
BEGIN
    LOOP
        seller := 1 + floor(random() * 5000);
        buyer := 1 + floor(random() * 5000);
        price := 1 + floor(random() * 100);
        UPDATE accounts SET balance = balance - price WHERE id = seller;
        UPDATE accounts SET balance = balance + price WHERE id = buyer;
        INSERT INTO transfers (source, target, amount) VALUES (seller, buyer, price);
        COMMIT;
    END LOOP;
END
$$;

-- How many transfers there are, what is in all accounts, and how many balances are not what the
-- ledger says.
CREATE VIEW audit AS
SELECT
    (SELECT count(*) FROM transfers) AS transfers,
    (SELECT sum(balance) FROM accounts) AS money,
    (
        SELECT count(*)
        FROM accounts
        LEFT JOIN (SELECT source AS id, sum(amount) AS sent FROM transfers GROUP BY 1) AS o USING (id)
        LEFT JOIN (SELECT target AS id, sum(amount) AS got FROM transfers GROUP BY 1) AS i USING (id)
        WHERE balance <> 1000 - coalesce(sent, 0) + coalesce(got, 0)
    ) AS unexplained;

ANALYZE;
