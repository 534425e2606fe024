-- name: make
-- The baseline's own tables: no tenants, no journal, no outbox, no counters that triggers keep. In its favour.
CREATE TABLE public.bench_stock (sku text PRIMARY KEY, stock bigint NOT NULL, reserved bigint NOT NULL DEFAULT 0)
    WITH (fillfactor = 50);
CREATE TABLE public.bench_order (
    key text PRIMARY KEY, sku text NOT NULL, quantity integer NOT NULL, amount_micros bigint NOT NULL,
    currency text NOT NULL, status text NOT NULL DEFAULT 'PENDING',
    expires_at timestamptz NOT NULL DEFAULT now() + interval '600 seconds'
);

-- name: stock
INSERT INTO public.bench_stock (sku, stock) VALUES ($1, $2);

-- name: take
UPDATE public.bench_stock SET reserved = reserved + $2 WHERE sku = $1 AND reserved + $2 <= stock;

-- name: order
INSERT INTO public.bench_order (key, sku, quantity, amount_micros, currency) VALUES ($1, $2, $3, $4, $5);

-- name: reserved
SELECT reserved FROM public.bench_stock WHERE sku = $1;
