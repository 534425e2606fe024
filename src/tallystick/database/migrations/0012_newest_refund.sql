-- The refunds of an order, in the order they were begun.
--
-- Whoever asks how an order stands wants its newest refund. Planned while there was none, on an index of order and tenant
-- that is as good as any other then, the statement went through refund_generation by the tenant alone: correct, and for ever
-- after it read every refund there is, for every question (decision 0019). An index that has them in the order that is asked
-- for saves a sort, so it is the cheapest whatever the table holds. It has refunds alone: charges do not pay for it.
DROP INDEX tally.order_refunds;
CREATE INDEX order_refunds ON tally.payment_idempotency_log (order_id, tenant_id, created_at, attempt)
    WHERE operation_type = 'REFUND';
