-- name: make
-- The baseline's own tables, as the paper has them: no tenants, no ledger, no journal, no outbox, no attempts and no
-- evidence. In its favour.
CREATE TABLE public.bench_stock (
    sku text PRIMARY KEY, stock bigint NOT NULL, reserved bigint NOT NULL DEFAULT 0, sold bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
CREATE TABLE public.bench_order (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(), key text NOT NULL UNIQUE, sku text NOT NULL, quantity integer NOT NULL,
    amount_micros bigint NOT NULL, currency text NOT NULL, status text NOT NULL DEFAULT 'PENDING',
    reservation_token uuid NOT NULL DEFAULT gen_random_uuid(),
    expires_at timestamptz NOT NULL DEFAULT now() + interval '600 seconds'
) WITH (fillfactor = 70);
CREATE TABLE public.bench_payment (
    idempotency_key text PRIMARY KEY, order_id uuid NOT NULL REFERENCES public.bench_order, operation_type text NOT NULL,
    amount_micros bigint NOT NULL, payment_intent_id text, status text NOT NULL DEFAULT 'PENDING',
    created_at timestamptz NOT NULL DEFAULT now(), completed_at timestamptz
) WITH (fillfactor = 70);
CREATE INDEX ON public.bench_payment (payment_intent_id);
CREATE TABLE public.bench_event (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(), psp_event_id text NOT NULL UNIQUE, event_type text NOT NULL,
    raw_payload jsonb NOT NULL, status text NOT NULL DEFAULT 'UNPROCESSED', created_at timestamptz NOT NULL DEFAULT now(),
    processed_at timestamptz
) WITH (fillfactor = 70);

-- name: stock
INSERT INTO public.bench_stock (sku, stock) VALUES ($1, $2);

-- name: take
UPDATE public.bench_stock SET reserved = reserved + $2 WHERE sku = $1 AND reserved + sold + $2 <= stock;

-- name: order
INSERT INTO public.bench_order (key, sku, quantity, amount_micros, currency) VALUES ($1, $2, $3, $4, $5)
RETURNING id, reservation_token;

-- name: payable
SELECT amount_micros, currency FROM public.bench_order
 WHERE id = $1 AND reservation_token = $2 AND status = 'PENDING' AND expires_at > now() FOR UPDATE;

-- name: intend
INSERT INTO public.bench_payment (idempotency_key, order_id, operation_type, amount_micros) VALUES ($1, $2, 'CHARGE', $3);

-- name: charged
UPDATE public.bench_payment SET status = 'COMPLETED', payment_intent_id = $2, completed_at = now()
 WHERE idempotency_key = $1;

-- name: event
INSERT INTO public.bench_event (psp_event_id, event_type, raw_payload) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING
RETURNING id;

-- name: pay
-- By the order's own key in the payment's reference: the webhook may come before the answer to the charge.
UPDATE public.bench_order o SET status = 'PAID' FROM public.bench_payment p
 WHERE p.idempotency_key = $1 AND o.id = p.order_id AND o.status = 'PENDING'
RETURNING o.sku, o.quantity;

-- name: sell
UPDATE public.bench_stock SET reserved = reserved - $2, sold = sold + $2 WHERE sku = $1;

-- name: processed
UPDATE public.bench_event SET status = 'PROCESSED_OK', processed_at = now() WHERE id = $1;

-- name: status
SELECT status FROM public.bench_order WHERE id = $1;

-- name: baseline_paid
SELECT count(*) FROM public.bench_order WHERE status = 'PAID';

-- name: paid
SELECT count(*) FROM tally.orders WHERE status = 'PAID';
