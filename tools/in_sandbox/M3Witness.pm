package M3Witness;

# Note which results of a Perl test come from Test::Builder, from which file, and that the program came to its end.
# Code under test can print lines that look like results, but a line without such a result is suspicious.

use strict;
use warnings;

my ($program, $report) = delete @ENV{qw(M3AGENT_TEST M3AGENT_EVENTS)};
delete @ENV{qw(PERL5OPT)};
my $out;
my $owner = $$;

if (defined $program && $0 eq $program && eval { require Test::Builder; require Test2::API; 1 }) {
    open $out, '>', $report or undef $out;
    if ($out) {
        my $old = select $out;
        $| = 1;
        select $old;
        Test2::API::test2_stack()->top->listen(
            sub {
                my ($hub, $event) = @_;
                return if $$ != $owner;
                my $facets = $event->facet_data;
                my $assert = $facets->{assert} or return;
                my $file = $facets->{trace}{frame}[1] // '';
                $file =~ s/\s+/ /g;
                print $out join(' ', 'result', $assert->{pass} ? 1 : 0, $file), "\n";
            },
            inherit => 0,
        );
    }
}

END {
    print $out "end\n" if $out && $$ == $owner;
}

1;
