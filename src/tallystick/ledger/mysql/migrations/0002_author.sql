-- Who did it: every row of the journal has an author. What says nothing is code of the release before this one.
--
-- Only MariaDB can add a column if it is missing, so that is asked first.
SET @add_author = IF((SELECT COUNT(*) FROM information_schema.columns
                       WHERE table_schema = DATABASE() AND table_name = 'tally_journal' AND column_name = 'author') = 0,
    'ALTER TABLE tally_journal ADD COLUMN author VARCHAR(300) NOT NULL DEFAULT ''unknown/earlier release''', 'DO 0');
PREPARE add_author FROM @add_author;
EXECUTE add_author;
DEALLOCATE PREPARE add_author;
