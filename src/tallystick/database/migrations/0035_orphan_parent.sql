-- A part that was given back by a lost life under another key of the caller's is seen before the first one is sent again.
--
-- A part was refused there, asked for again under another key, and given back. The backup knows of neither; its caller begins
-- where he began, and the first key, which moved nothing, is absent from the provider's books: the same part went back twice.
-- So a movement that nothing here explains keeps the payment that it is of (flows.refund asks for it).
--
-- Rows of before have none. The release before this one runs beside it, and writes none.
ALTER TABLE tally.orphan ADD COLUMN parent text;
